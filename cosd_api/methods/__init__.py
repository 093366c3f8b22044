"""The fusion methods. Each method has its own module."""
