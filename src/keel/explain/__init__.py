"""What a trained model knows, shown."""
