"""Real clients of OpenAI's protocol: a script for each, which runs where that client is installed."""
