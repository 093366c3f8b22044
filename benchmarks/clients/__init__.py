"""Real clients of OpenAI's protocol: one script per client, run in the environment in which the client is installed."""
