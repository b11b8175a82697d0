package tagsync

import "premix/internal/kit/problem"

// Problem is one mistake in a watch list.
type Problem = problem.Problem

// Problems is the list of mistakes in a watch list, in the order of its lines.
type Problems = problem.List
