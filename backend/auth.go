package backend

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/policy"
)

// role is what a member may do in a workspace; each may what the one before may.
type role int

const (
	viewer   role = iota + 1 // look
	operator                 // create, launch, stop, clean up
	admin                    // read the audit
)

func (r role) String() string {
	return map[role]string{viewer: "viewer", operator: "operator", admin: "admin"}[r]
}

// ParseRole reads a role's name.
func ParseRole(s string) (string, error) {
	if roleOf(s) == 0 {
		return "", refuse(policy.CodeBadRequest, "%q is no role: use viewer, operator or admin", policy.Printable(s))
	}
	return s, nil
}

func roleOf(s string) role {
	for _, r := range []role{viewer, operator, admin} {
		if r.String() == s {
			return r
		}
	}
	return 0
}

// identity is who asks.
type identity struct {
	name    string // a person's name, or "token:LABEL"
	roles   map[string]role
	session bool // by a cookie, which a browser sends unasked
	csrf    string
}

func (c *call) cookieName() string {
	if c.b.tls {
		return "__Host-yoi" // only over TLS, only from this very host
	}
	return "yoi"
}

// authenticate finds out who asks. A token goes before a cookie. Wrong ones are as
// good as none.
func (c *call) authenticate() error {
	if h := c.r.Header.Get("Authorization"); h != "" {
		secret, ok := strings.CutPrefix(h, "Bearer ")
		if !ok || c.route.ui {
			return refuse(CodeAuthenticationRequired, "the Authorization header is not a bearer token")
		}
		t, err := c.b.store.GetToken(c.ctx, secret)
		if errors.Is(err, store.ErrNotFound) {
			if c.route.open {
				return nil
			}
			return c.wrongSecret("the token is unknown, expired or revoked")
		}
		if err != nil {
			return storeFailed(err)
		}
		c.who = &identity{name: "token:" + t.Label, roles: map[string]role{t.Workspace: roleOf(t.Role)}}
		return nil
	}
	cookie, err := c.r.Cookie(c.cookieName())
	if err != nil {
		return nil
	}
	s, err := c.b.store.GetSession(c.ctx, cookie.Value)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return storeFailed(err)
	}
	c.who = &identity{name: s.Actor, session: true, csrf: s.CSRF, roles: make(map[string]role, len(s.Roles))}
	for w, r := range s.Roles {
		c.who.roles[w] = roleOf(r)
	}
	return nil
}

// wrongSecret bounds how fast tokens can be tried.
func (c *call) wrongSecret(why string) error {
	if wait, ok := c.s.requests.take("wrong:" + remote(c.r)); !ok {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds())+1))
		return refuse(CodeRateLimited, "too many wrong tokens")
	}
	return refuse(CodeAuthenticationRequired, "%s", why)
}

// checkCSRF looks for the session's token: a script sends it as a header, a form as
// a field. Origin and Sec-Fetch-Site were looked at before (find); this holds for
// browsers that send neither.
func (i *identity) checkCSRF(r *http.Request) bool {
	got := r.Header.Get("X-CSRF-Token")
	if got == "" && isForm(r) {
		got = r.PostFormValue("csrf")
	}
	return subtle.ConstantTimeCompare([]byte(got), []byte(i.csrf)) == 1 && i.csrf != ""
}

func isForm(r *http.Request) bool {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(media) == "application/x-www-form-urlencoded"
}

// login checks a name and a password and begins a session.
func (c *call) login(name, password string) error {
	for _, key := range []string{"address:" + remote(c.r), "name:" + name} {
		if wait, ok := c.s.logins.take(key); !ok {
			c.w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds())+1))
			return refuse(CodeRateLimited, "too many logins were tried")
		}
	}
	hash := nobody
	a, err := c.b.store.GetActor(c.ctx, name)
	switch {
	case err == nil:
		hash = a.Password
	case !errors.Is(err, store.ErrNotFound):
		return storeFailed(err)
	}
	select {
	case c.b.hashing <- struct{}{}:
		defer func() { <-c.b.hashing }()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	ok, herr := checkPassword(hash, password)
	if herr != nil {
		return storeFailed(herr)
	}
	if err != nil || !ok {
		c.b.record(c.ctx, store.Act{Actor: policy.Printable(limitText(name, 64)), Action: "login", Outcome: string(CodeLoginFailed)})
		return refuse(CodeLoginFailed, "the name or the password is wrong")
	}
	secret, err := c.b.store.AddSession(c.ctx, name, c.s.session)
	if err != nil {
		return storeFailed(err)
	}
	c.setCookie(secret, int(c.s.session.Seconds()))
	c.b.record(c.ctx, store.Act{Actor: name, Action: "login", Outcome: "ok"})
	return nil
}

func (c *call) logout() error {
	if cookie, err := c.r.Cookie(c.cookieName()); err == nil {
		if err := c.b.store.RemoveSession(c.ctx, cookie.Value); err != nil {
			return storeFailed(err)
		}
	}
	c.setCookie("", -1)
	return nil
}

func (c *call) setCookie(value string, maxAge int) {
	http.SetCookie(c.w, &http.Cookie{
		Name: c.cookieName(), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		Secure: c.b.tls, SameSite: http.SameSiteLaxMode,
	})
}

func storeFailed(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return refuse(CodeStoreFailed, "the database cannot be used").Because(err)
}

// record writes a line of the audit. What was done is done: a failure is logged.
func (b *Backend) record(ctx context.Context, a store.Act) {
	if err := b.store.Record(context.WithoutCancel(ctx), a); err != nil {
		b.log.Error("the audit cannot be written", "action", a.Action, "who", a.Actor, "error", err)
	}
}

// audited records an action of the call and its outcome.
func (c *call) audited(action, target string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = string(c.b.problemOf(err).Code)
	}
	c.b.record(c.ctx, store.Act{Workspace: c.wsID, Actor: c.who.name, Action: action, Target: target, Outcome: outcome})
}

// limitText is the beginning of s, of at most so many bytes and whole characters.
func limitText(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "")
	}
	return s
}
