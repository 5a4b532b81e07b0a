"""The history domain: records of what was done, and how long they and objects of any kind stay, by age and by count.

`records` makes and writes records. `policy` is what people write: the documents, what they mean, and the rights that
they need. `retention` is what follows from it: pure rules about objects and groups, and passes over a store, which are
sweeps of the engine. `service` puts it together; `view` and `reports` are what people see.
"""
