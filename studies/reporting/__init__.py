"""The one-page report: sentences (:mod:`.words`), sections (:mod:`.page`) and the template with its style and script."""
