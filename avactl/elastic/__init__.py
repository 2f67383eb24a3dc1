"""The elastic job master: hands out shards of datasets to workers that come and go."""
