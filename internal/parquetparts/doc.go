// Package parquetparts has the parts of a Parquet file that are the same whoever lays out
// its columns: the schema of a type of row, pages, and the end of the file. Tables of
// files and segments of series encode their columns themselves, since a writer that takes
// any row looks at each value of it.
//
// Source: the Apache Parquet format 2.11, README ("File Format", "Checksumming") and
// parquet.thrift.
package parquetparts
