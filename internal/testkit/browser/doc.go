// Package browser drives Chromium in tests of pages. It speaks the DevTools
// protocol (https://chromedevtools.github.io/devtools-protocol/) over a pair of
// pipes, so that it needs no port and no other program.
package browser
