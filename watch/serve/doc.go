// Package serve answers for what is recorded: REST, metrics, and the dashboard,
// which is plain files below web.
package serve
