"""Trees and thresholds from data: samples of what two models would write, a tree trained on them, thresholds tuned."""
