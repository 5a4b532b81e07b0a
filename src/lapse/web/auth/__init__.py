"""Authentication and authorisation of the HTTP API: tokens, sessions, scopes and their database."""
