"""The tests of Lapse. A package only so that no installed package named `tests` can take the place of this one."""
