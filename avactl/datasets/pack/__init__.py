"""Packing of many small files into shards: WebDataset, TFRecord, RecordIO."""
