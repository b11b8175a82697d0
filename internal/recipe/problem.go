package recipe

import "premix/internal/kit/problem"

// Problem is one mistake in a recipe or a sample sheet.
type Problem = problem.Problem

// Problems is all that is wrong with one file, sorted by line. It is the error
// that Load and Sheet return for anything the writer of the file can mend.
type Problems = problem.List
