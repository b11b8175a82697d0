// Package doctor checks which features of premix a machine has for a user, and names what
// the others need. Checks try the thing itself where that changes nothing, and ask no other
// machine.
//
// Features is the table of features by kernel and privilege; the documentation has the same
// one.
package doctor
