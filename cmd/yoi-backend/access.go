package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"yoi.dev/yoi-runtime/backend"
	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/policy"
)

// missing words a store's answer about something that is not there.
func missing(err error, what, name string) error {
	if errors.Is(err, store.ErrNotFound) {
		return policy.Errorf(policy.CodeNotFound, "backend.access", "there is no %s %q", what, policy.Printable(name))
	}
	return err
}

func knownWorkspace(cfg backend.Config, id string) error {
	if _, ok := cfg.Workspaces[id]; !ok {
		return policy.Errorf(policy.CodeBadRequest, "backend.access", "the configuration has no workspace %q", policy.Printable(id))
	}
	return nil
}

func (a *app) userAdd() *cobra.Command {
	var roles []string
	var keep bool
	c := &cobra.Command{
		Use: "add NAME", Short: "Make or change a person; the password is asked for, or read from standard input",
		Example: "  yoi-backend user add ada --role demo=operator --role tools=viewer\n  yoi-backend user add ada --role demo=admin --keep-password",
		Args:    a.args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(cfg backend.Config, s *store.Store) error {
				if err := policy.CheckID("user", argv[0]); err != nil {
					return err
				}
				v := store.Actor{Name: argv[0], Roles: map[string]string{}}
				for _, r := range roles {
					ws, name, _ := strings.Cut(r, "=")
					if err := knownWorkspace(cfg, ws); err != nil {
						return err
					}
					role, err := backend.ParseRole(name)
					if err != nil {
						return err
					}
					v.Roles[ws] = role
				}
				if !keep {
					password, err := readPassword(cmd)
					if err != nil {
						return err
					}
					if v.Password, err = backend.HashPassword(password); err != nil {
						return policy.Errorf(policy.CodeBadRequest, "backend.access", "%s", err)
					}
				}
				if err := s.PutActor(cmd.Context(), v); err != nil {
					return missing(err, "user", v.Name)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s may log in\n", v.Name)
				return nil
			})
		},
	}
	c.Flags().StringArrayVar(&roles, "role", nil, "`WORKSPACE=ROLE`: viewer, operator or admin (repeatable; others are taken away)")
	c.Flags().BoolVar(&keep, "keep-password", false, "leave the password as it is")
	return c
}

// readPassword asks on a terminal twice, without showing it; else it is the first
// line of standard input.
func readPassword(cmd *cobra.Command) (string, error) {
	f, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 4096)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	var first string
	for i, prompt := range []string{"password: ", "again: "} {
		fmt.Fprint(cmd.ErrOrStderr(), prompt)
		b, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(cmd.ErrOrStderr())
		if err != nil {
			return "", err
		}
		if i == 0 {
			first = string(b)
		} else if first != string(b) {
			return "", policy.Errorf(policy.CodeBadRequest, "backend.access", "the two passwords differ")
		}
	}
	return first, nil
}

func (a *app) userRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a person and end their sessions", Aliases: []string{"rm"}, Example: "  yoi-backend user remove ada",
		Args: a.args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(_ backend.Config, s *store.Store) error {
				if err := s.RemoveActor(cmd.Context(), argv[0]); err != nil {
					return missing(err, "user", argv[0])
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s removed\n", argv[0])
				return nil
			})
		},
	}
}

func (a *app) tokenAdd() *cobra.Command {
	var t store.Token
	var life time.Duration
	c := &cobra.Command{
		Use: "add", Short: "Make a token and print it: it is shown once", Example: "  yoi-backend token add --workspace demo --role operator --label ci --expires 720h",
		Args: a.args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(cfg backend.Config, s *store.Store) error {
				if err := knownWorkspace(cfg, t.Workspace); err != nil {
					return err
				}
				if _, err := backend.ParseRole(t.Role); err != nil {
					return err
				}
				if err := policy.CheckID("label", t.Label); err != nil {
					return err
				}
				t.ID = policy.NewID("tk-")
				if life > 0 {
					t.ExpiresAt = time.Now().Add(life)
				}
				secret, err := s.AddToken(cmd.Context(), t)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), secret)
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&t.Workspace, "workspace", "", "for this `WORKSPACE`")
	c.Flags().StringVar(&t.Role, "role", "viewer", "`ROLE`: viewer, operator or admin")
	c.Flags().StringVar(&t.Label, "label", "", "what the audit calls it: `NAME`")
	c.Flags().DurationVar(&life, "expires", 0, "after this `DURATION` (default: never)")
	return c
}

func (a *app) tokenList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tokens, without their secrets", Aliases: []string{"ls"}, Example: "  yoi-backend token list",
		Args: a.args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(_ backend.Config, s *store.Store) error {
				list, err := s.ListTokens(cmd.Context())
				if err != nil {
					return err
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "ID\tLABEL\tWORKSPACE\tROLE\tEXPIRES")
				for _, t := range list {
					expires := "never"
					if !t.ExpiresAt.IsZero() {
						expires = t.ExpiresAt.Format(time.RFC3339)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, t.Label, t.Workspace, t.Role, expires)
				}
				return w.Flush()
			})
		},
	}
}

func (a *app) tokenRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove ID", Short: "Revoke a token", Aliases: []string{"rm"}, Example: "  yoi-backend token remove tk-0123456789abcdef",
		Args: a.args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(_ backend.Config, s *store.Store) error {
				if err := s.RemoveToken(cmd.Context(), argv[0]); err != nil {
					return missing(err, "token", argv[0])
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s revoked\n", argv[0])
				return nil
			})
		},
	}
}
