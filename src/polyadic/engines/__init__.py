"""Relations of photos by the million: shards of fixed content, one pure function per shard, several engines.

`shards.relate_shard` turns a list of photos into one Parquet file. An engine (`local`, `ray_data`) only decides where
it runs: the answer depends on neither engine, number of workers nor interruptions.
"""
