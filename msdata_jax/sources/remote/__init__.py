"""Files by URL, through fsspec: ranges in blocks, kept in a disk cache that the processes of a host share."""
