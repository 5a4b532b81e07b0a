"""The life of requests and keepers: policies, holds that are passed on, and the end."""
