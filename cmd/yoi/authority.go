package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// authorityFlags are about what a Worker is given: programs, configuration and secrets.
type authorityFlags struct {
	secrets []string
	tools   []string
	bundle  string
}

func (f *authorityFlags) register(c *cobra.Command, own bool) {
	fl := c.Flags()
	usage := "give it the use of a secret: `HANDLE[,as=file|env|http-header][,name=NAME][,host=HOST][,prefix=TEXT]` (repeatable; default as=file, at /run/secrets/HANDLE)"
	if own {
		usage = "give it the use of a secret: `HANDLE[=file:PATH|=env:VAR|=cmd:COMMAND][,as=file|env|http-header][,name=NAME][,host=HOST][,prefix=TEXT]` (repeatable; default as=file, at /run/secrets/HANDLE; without a source the operator's)"
	}
	fl.StringVar(&f.bundle, "config-bundle", "", "let it read a stored directory at /run/yoi/config: its `DIGEST` (see yoi bundle add)")
	fl.StringArrayVar(&f.tools, "tool", nil, "let just this `PROGRAM` of the host exist, with what it loads: a name, a path, or coreutils, findutils, diffutils, binutils (repeatable)")
	fl.StringArrayVar(&f.secrets, "secret", nil, usage)
}

// apply puts them into the policy, and returns the caller's own stores.
func (f *authorityFlags) apply(p *policy.SandboxPolicy) (map[policy.SecretHandle]runtime.CallerSecret, error) {
	p.Tools, p.ConfigBundle = f.tools, policy.BundleDigest(f.bundle)
	var stores map[policy.SecretHandle]runtime.CallerSecret
	for _, text := range f.secrets {
		s, store, err := parseSecret(text)
		if err != nil {
			return nil, err
		}
		p.Secrets = append(p.Secrets, s)
		if store == nil {
			continue
		}
		if other, again := stores[s.Handle]; again && other != *store {
			return nil, usageError{fmt.Errorf("--secret %s has two sources", s.Handle)}
		}
		if stores == nil {
			stores = make(map[policy.SecretHandle]runtime.CallerSecret)
		}
		stores[s.Handle] = *store
	}
	return stores, nil
}

// secretOptions are what may stand behind a comma, so that a path or a command may
// have commas too.
var secretOptions = []string{"as", "name", "host", "prefix"}

// parseSecret reads --secret. What is wrong with it is said without its source: a
// value that was given there by mistake would be in a log.
func parseSecret(text string) (s policy.Secret, store *runtime.CallerSecret, err error) {
	rest := text
	options := make(map[string]string)
	for {
		i := strings.LastIndexByte(rest, ',')
		if i < 0 {
			break
		}
		k, v, ok := strings.Cut(rest[i+1:], "=")
		if !ok || !slices.Contains(secretOptions, k) {
			break
		}
		if _, again := options[k]; again {
			return s, nil, usageError{fmt.Errorf("--secret: %s is given twice", k)}
		}
		options[k], rest = v, rest[:i]
	}
	handle, source, own := strings.Cut(rest, "=")
	s = policy.Secret{
		Handle: policy.SecretHandle(handle), As: policy.SecretDelivery(options["as"]),
		Name: options["name"], Host: options["host"], Prefix: options["prefix"],
	}
	if s.As == "" {
		s.As = policy.SecretFile
	}
	if err := s.Validate(); err != nil || !own {
		return s, nil, err
	}
	kind, ref, _ := strings.Cut(source, ":")
	store = new(runtime.CallerSecret)
	switch {
	case ref == "":
	case kind == "file":
		store.File = ref
	case kind == "env":
		store.Env = ref
	case kind == "cmd":
		store.Command = ref
	}
	if *store == (runtime.CallerSecret{}) {
		return s, nil, usageError{fmt.Errorf("--secret %s: the source is not file:PATH, env:VAR or cmd:COMMAND (a value is never given on a command line, which others can read)", s.Handle)}
	}
	return s, store, nil
}
