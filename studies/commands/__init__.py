"""One module a command; imported only when its command is called (see ``shapefront.studies.cli``)."""
