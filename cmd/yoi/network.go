package main

import (
	"github.com/spf13/pflag"

	"yoi.dev/yoi-runtime/policy"
)

func networkFlags(fl *pflag.FlagSet, mode *string, allow *[]string, transparent *bool) {
	fl.StringVar(mode, "network", "", "`MODE` none (default), allowlist or host")
	fl.StringArrayVar(allow, "allow", nil, "let the network reach `HOST:PORT`, or *.DOMAIN:PORT (repeatable; implies --network allowlist)")
	fl.BoolVar(transparent, "transparent", false, "serve --allow under the names themselves too, for programs that know of no proxy")
}

func networkOf(mode string, allow []string, transparent bool) policy.NetworkPolicy {
	p := policy.NetworkPolicy{Mode: policy.NetworkMode(mode), Rules: allow, Transparent: transparent}
	if p.Mode == "" && (len(allow) > 0 || transparent) {
		p.Mode = policy.NetworkAllowlist
	}
	return p
}
