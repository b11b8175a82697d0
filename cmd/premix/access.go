package main

import (
	"errors"

	"github.com/spf13/pflag"

	"premix/internal/kit/access"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// accessFlags are the options of every service: its address and the clients it serves.
type accessFlags struct {
	listen, tokens string
	open           bool
	hosts          []string
}

// register declares the options. address is where the service listens by default, and
// tokens describes the lines of a file of tokens.
func (o *accessFlags) register(f *pflag.FlagSet, address, tokens string) {
	f.StringVar(&o.listen, "listen", address, "address to listen on: HOST:PORT, or unix:PATH, which only you and root can reach")
	f.StringVar(&o.tokens, "token-file", "", tokens)
	f.BoolVar(&o.open, "open", false, "answer all clients that can reach the address")
	f.StringArrayVar(&o.hosts, "host", nil, "further host name of the service, besides localhost; may be repeated")
}

// read reads the file of tokens. It returns nil if the user named none.
func (o *accessFlags) read() (*access.Tokens, error) {
	if o.tokens == "" {
		return nil, nil
	}
	return readTokens(o.tokens)
}

// readTokens reads a file of tokens.
func readTokens(path string) (*access.Tokens, error) {
	t, err := access.ReadTokens(path)
	return t, secretError(err)
}

// secretError is the error of a file with a secret.
func secretError(err error) error {
	var h hinted
	if !errors.As(err, &h) {
		return fileError(err)
	}
	var foreign *owner.Error // of a file that the command line names
	if exit.Of(err) == exit.Internal || errors.As(err, &foreign) {
		err = &usageError{err, h.Hint()}
	}
	return err
}

// options returns the options of a service whose requests need one of the tokens.
func (o *accessFlags) options(t *access.Tokens) access.Options {
	return access.Options{Address: o.listen, Secret: t != nil, Open: o.open, Hosts: o.hosts}
}
