"""HTTP: the API, the pages and the probes.

`security` stands in front of every route, `problems` turns every error into problem+json, `app` puts the routes
together. Nothing here opens a store or reads a setting by itself: `lapse.app.up` hands everything in.
"""
