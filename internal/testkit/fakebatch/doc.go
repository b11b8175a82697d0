// Package fakebatch makes fake programs of LSF, PBS and SGE for tests. They are not these
// systems: they print answers in the forms that the manuals describe, and run jobs at once on
// this machine. fake.py describes them.
package fakebatch
