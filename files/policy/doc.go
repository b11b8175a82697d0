// Package policy plans and does what a file of rules says about the files of a scan:
// which stay, in which pool they are placed, which move to another pool, which are
// deleted, and which directories become trees in a store.
//
// Words:
//
//   - pool: a directory, of a kind of disk. A file that moves from one pool to another
//     keeps its path below them.
//   - rule: what is done with the entries for which a condition holds. An entry belongs
//     to the first rule that it matches, and to no other.
//   - verb: what a rule does; see [Verb].
//   - threshold: how full a pool has to be for a rule to act, and when it stops.
//   - weight: of the files of a rule with a threshold, the heaviest go first.
//   - plan: what the rules would do with what a scan found; see [Plan].
//
// # The language
//
// Rules are statements in SQL's dress, after those of GPFS' mmapplypolicy. In this
// grammar [x] may be left out, {x} may come any number of times, and clauses of a rule
// come in any order, each at most once:
//
//	file       = { statement ";" }
//	statement  = CREATE POOL name AT 'directory' [CAPACITY size]
//	           | RULE 'name' verb { clause }
//	verb       = EXCLUDE | PLACE | MIGRATE | DELETE | PACK
//	clause     = FROM POOL name | TO POOL name | IN POOL name
//	           | THRESHOLD percent [TO percent] | WEIGHT expression
//	           | INTO STORE 'directory' [AS 'name'] | WHERE expression
//	expression = expression (OR | AND) expression | NOT expression | comparison
//	comparison = sum [(= | <> | != | < | <= | > | >=) sum]
//	           | sum [NOT] (LIKE | ILIKE) 'pattern' [ESCAPE 'c']
//	           | sum [NOT] (GLOB | REGEXP) 'pattern'
//	           | sum [NOT] IN (sum {, sum}) | sum [NOT] BETWEEN sum AND sum
//	sum        = product {(+ | - | "||") product}
//	product    = signed {(* | / | % | &) signed}
//	signed     = [-] (number [unit] | 'text' | TRUE | FALSE | column | function(...)
//	           | INTERVAL number unit | TIMESTAMP 'time' | (expression)
//	           | CASE WHEN expression THEN expression ... ELSE expression END)
//
// Columns are those of a scan, and path, suffix, pool, owner and group; docs/files-policy.md
// lists them. There is no NULL: a column that a file system may not know (born) is not
// offered, nothing is divided by what may be 0, and a user, group or pool that does not
// exist is an error, since its negation would be true of every file.
//
// # How a plan is made
//
// A scan is read a row group at a time, several at once. The bounds in the file say of
// some groups that no row or every row fulfils a condition; of the others those columns
// are read that conditions still need for the rows that are left, cheap conditions
// first. Conditions on texts that many rows share are evaluated once for each text.
// What a rule with a threshold may need is kept in order of weight, and no more than
// frees the bytes that are needed.
//
// Sources: IBM Storage Scale, "Policy rules: Syntax"; SQL:2016; the Apache Parquet
// format.
package policy
