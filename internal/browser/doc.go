// Package browser drives Chromium in tests of pages. It speaks the DevTools
// protocol (https://chromedevtools.github.io/devtools-protocol/) over a pair of
// pipes, so that no port is opened and nothing else has to be installed.
package browser
