"""Trees and thresholds from data: decision samples of two models, a tree trained on them, and tuned thresholds."""
