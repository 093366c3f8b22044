"""The methods: ways to fuse several models into one text. Each method has a module of its own."""
