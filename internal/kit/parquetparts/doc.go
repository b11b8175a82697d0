// Package parquetparts has the parts of a Parquet file that do not depend on the encoding
// of its columns: the schema of a row type, pages, and the footer. Tables of files and
// segments of series encode their columns themselves, since a writer for rows of any type
// is slower: it inspects each value.
//
// Source: the Apache Parquet format 2.11, README ("File Format", "Checksumming") and
// parquet.thrift.
package parquetparts
