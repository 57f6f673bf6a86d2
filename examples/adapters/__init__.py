"""Our sessions under other agent frameworks: each file a model that the framework can use."""
