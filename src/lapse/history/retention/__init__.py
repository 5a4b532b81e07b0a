"""Retention: pure rules about which objects go, and passes over a store that find and end them."""
