// Package unixpeer identifies and checks the user at the other end of a Unix socket.
package unixpeer
