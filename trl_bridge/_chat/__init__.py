"""What a model sees of an environment: content, conversations, tools and their schemas."""
