package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// maxPolicySize is far more than any policy has.
const maxPolicySize = 1 << 20

func (a *app) policyCommand() *cobra.Command {
	return groupCommand("policy", "Check and explain sandbox policies", "  yoi policy check agent.toml\n  yoi policy explain",
		a.policyCheck(), a.policyExplain())
}

// readPolicy reads a policy's file; - is standard input and "" the defaults.
func (a *app) readPolicy(name string) (policy.SandboxPolicy, error) {
	const op = "yoi.policy"
	if name == "" {
		return policy.SandboxPolicy{}.Normalize(), nil
	}
	var in io.Reader = os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return policy.SandboxPolicy{}, policy.Errorf(policy.CodePolicyInvalid, op, "the policy %s cannot be read", policy.Printable(filepath.Base(name))).Because(err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxPolicySize+1))
	if err == nil && len(b) > maxPolicySize {
		return policy.SandboxPolicy{}, policy.Errorf(policy.CodePolicyInvalid, op, "the policy is larger than %d bytes", maxPolicySize)
	}
	if err != nil {
		return policy.SandboxPolicy{}, policy.Errorf(policy.CodePolicyInvalid, op, "the policy %s cannot be read", policy.Printable(filepath.Base(name))).Because(err)
	}
	return runtime.ParsePolicy(b)
}

// underPolicy is a policy's file with what the command line says on top.
func (a *app) underPolicy(file string, flags policy.SandboxPolicy) (policy.SandboxPolicy, error) {
	if file == "" {
		return flags, nil
	}
	p, err := a.readPolicy(file)
	if err != nil {
		return p, err
	}
	if flags.Root != "" {
		p.Root = flags.Root
	}
	if flags.Network.Mode != "" {
		p.Network = flags.Network
	}
	if flags.Seccomp != "" {
		p.Seccomp = flags.Seccomp
	}
	for k, v := range flags.Env {
		if p.Env == nil {
			p.Env = make(map[string]string)
		}
		p.Env[k] = v
	}
	for _, r := range flags.Require {
		if !slices.Contains(p.Require, r) {
			p.Require = append(p.Require, r)
		}
	}
	if flags.IDs != policy.IDsSingle {
		p.IDs = flags.IDs
	}
	for _, t := range flags.Tools {
		if !slices.Contains(p.Tools, t) {
			p.Tools = append(p.Tools, t)
		}
	}
	if flags.ConfigBundle != "" {
		p.ConfigBundle = flags.ConfigBundle
	}
	p.Secrets = append(p.Secrets, flags.Secrets...)
	p.BuildCache = p.BuildCache || flags.BuildCache
	p.PublishCaches = p.PublishCaches || flags.PublishCaches
	// Both leave out what is not set.
	for _, pair := range [][2]any{{flags.Limits, &p.Limits}, {flags.Quota, &p.Quota}} {
		b, err := json.Marshal(pair[0])
		if err == nil {
			err = json.Unmarshal(b, pair[1])
		}
		if err != nil {
			return p, err
		}
	}
	return p, nil
}

func (a *app) policyCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Say whether a sandbox policy is one, and its digest",
		Long: `Read a sandbox policy, TOML or JSON, - for standard input, and say whether every
word of it is known and possible. The digest is the one that evidence has.

Exit codes: 0 the policy is good; 1 it is not.`,
		Example: "  yoi policy check agent.toml\n  yoi policy check - --json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, argv []string) error {
			p, err := a.readPolicy(argv[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					Policy policy.SandboxPolicy `json:"policy"`
					Digest string               `json:"digest"`
				}{p, p.Digest()})
			}
			_, err = fmt.Fprintln(a.stdout, p.Digest())
			return err
		},
	}
}

func (a *app) policyExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain [FILE]", Short: "Show what a Worker under a policy could see and do on this host, and why",
		Long: `Show the whole file system of a Worker under a sandbox policy (the defaults without
a FILE) on this host, and what its network, system calls and limits would be. What is
not listed does not exist inside. No Worker is started, and nothing is written.`,
		Example: "  yoi policy explain\n  yoi policy explain agent.toml\n  yoi policy explain agent.toml --json",
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, argv []string) error {
			p, err := a.readPolicy(strings.Join(argv, ""))
			if err != nil {
				return err
			}
			x, err := runtime.ExplainPolicy(p)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(x)
			}
			return a.showExplanation(x)
		},
	}
}

func (a *app) showExplanation(x runtime.PolicyExplanation) error {
	var rows [][]string
	for _, v := range x.Sees {
		rows = append(rows, []string{v.Path, v.Access, v.What})
	}
	if err := a.table([]string{"PATH", "ACCESS", "WHAT"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	for _, n := range x.Notes {
		fmt.Fprintln(a.stdout, n)
	}
	_, err := fmt.Fprintf(a.stdout, "\npolicy  %s\nfilter  %s\n", x.Digest, x.SeccompDigest)
	return err
}
