// Package regex has regular expressions that wait to be compiled until somebody uses
// them: premix is started for one verb, which needs few of them or none.
package regex
