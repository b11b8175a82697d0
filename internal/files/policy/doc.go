// Package policy plans and applies rules to the files of a scan. The rules say which files
// stay, which are placed in or moved to another pool, which are deleted, and which
// directories become trees in a store.
//
// Words:
//
//   - pool: a directory on one kind of disk. A file that moves from one pool to another
//     keeps its relative path.
//   - rule: an operation on the entries for which a condition holds. An entry belongs
//     to the first rule that it matches, and only to this one.
//   - verb: the operation of a rule; see [Verb].
//   - threshold: the fill level of a pool above which a rule acts, and where it stops.
//   - weight: of the files of a rule with a threshold, the heaviest go first.
//   - premigrated: a file that stays in its pool, and has a copy in the pool to which a
//     rule would move it; see premigrate.go.
//   - plan: the operations of the rules on the entries of a scan; see [Plan].
//
// # The language
//
// Rules are statements in the style of SQL, modelled on GPFS' mmapplypolicy. In this
// grammar [x] is optional, {x} may be repeated any number of times, and clauses of a rule
// come in any order, each at most once:
//
//	file       = { statement ";" }
//	statement  = CREATE POOL name AT 'directory' [CAPACITY size]
//	           | CREATE FILESET name AT 'directory'
//	           | RULE 'name' verb { clause }
//	verb       = EXCLUDE | PLACE | MIGRATE | DELETE | PACK | LIST | EXEC 'program'
//	clause     = FROM POOL name | TO POOL name | IN POOL name
//	           | FOR FILESET ["("] name {, name} [")"]
//	           | THRESHOLD percent [TO percent] [PREMIGRATE percent] | WEIGHT expression
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
// The columns are the columns of a scan, and path, suffix, pool, owner and group;
// docs/files-policy.md lists them. The language has no NULL: it lacks the column that a
// file system may not record (born), a divisor must be a constant other than 0, and a user,
// group or pool that does not exist is an error, since its negation would be true of every
// file.
//
// # Planning
//
// A scan is read a row group at a time, several at once. For some groups the bounds in the
// file show that no row, or every row, fulfils a condition. For the others, conditions are
// evaluated over the remaining rows, cheap ones first, and only the columns that they need
// are read. Conditions on texts that many rows share are evaluated once for each text. A
// rule with a threshold keeps the heaviest candidates, only as many as free the required
// bytes.
//
// Sources: IBM Storage Scale, "Policy rules: Syntax"; SQL:2016; the Apache Parquet format.
package policy
