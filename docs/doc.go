// Package docs holds the pages of the documentation, so that `premix help TOPIC` shows them
// where there are no files but premix.
package docs
