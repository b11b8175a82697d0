// Package regex compiles regular expressions at their first use: a premix process runs one
// verb, which needs few of them or none.
package regex
