// Package dial opens connections ahead of the requests that will need them.
package dial
