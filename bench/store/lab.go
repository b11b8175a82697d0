package main

import "premix/internal/testkit/workbench"

// lab is the work directory, with the files that this benchmark makes in it.
type lab struct{ *workbench.Lab }
