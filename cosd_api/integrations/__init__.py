"""The fusion where applications already are: other libraries' interfaces. Each needs an extra of its name."""
