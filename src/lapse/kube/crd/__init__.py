"""CustomResourceDefinitions: made from types and rules, validated by, and installed."""
