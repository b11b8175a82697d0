// Package wording holds the test that keeps comments, messages and documents in plain
// technical English: it counts the habits that CONTRIBUTING.md names.
package wording
