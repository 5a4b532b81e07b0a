"""What a controller needs: the vocabulary of the Kubernetes API and the machinery on top of it.

`resources` and `errors` are the words; `informer`, `workqueue` and `controller` work on anything that lists and
watches, so they serve the embedded object store as well. `client` speaks to a real API server, on `config` and
`kubeconfig` (where it is), `credentials`, `plugin` and `tls` (who we are), `transport` (the way there), `wire` and
`failures` (what is said); `definitions` brings CustomResourceDefinitions to it. Of kinds of our own, `schema`, `rules`,
`fields` and `conditions` say what is demanded of a document; `validation` judges by that, and `crd` makes definitions.
Knows no domain and no database.
"""
