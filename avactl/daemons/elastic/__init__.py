"""The elastic job master: hands out tasks of datasets to workers that come and go."""
