-- Made candidates.parquet and others of this directory, with DuckDB 2.0.1:
--   duckdb < candidates.sql
CREATE TABLE found (dir VARCHAR, name VARCHAR, size BIGINT, tags VARCHAR[], modified BIGINT);
INSERT INTO found VALUES
  ('/data/a', 'one.bam', 100, ['x', 'y'], 1700000000000000001),
  ('/data/a', 'zwei''ü.bam', 0, [], 1700000000000000002),
  ('/data/a/b', '.', -1, NULL, 1700000000000000003);
COPY found TO 'candidates.parquet';
COPY (SELECT dir || '/' || name AS path FROM found, range(3) WHERE name <> '.' ORDER BY path)
  TO 'paths.parquet' (COMPRESSION zstd);
COPY (SELECT NULL::VARCHAR AS path) TO 'null.parquet';
COPY (SELECT 'data/a' AS path) TO 'relative.parquet';
COPY (SELECT '/data/a' AS path, 1.5::DOUBLE AS size) TO 'double.parquet';
COPY (SELECT * FROM (VALUES ('/data/a', 1::BIGINT), ('/data/a', 2)) t(path, size)) TO 'twice.parquet';
COPY (SELECT '/data' AS dir) TO 'dir.parquet';
