package main

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func TestParseSecret(t *testing.T) {
	file, env := policy.SecretFile, policy.SecretEnv
	for text, want := range map[string]struct {
		secret policy.Secret
		store  *runtime.CallerSecret
	}{
		"npm":                        {policy.Secret{Handle: "npm", As: file}, nil},
		"npm,as=env,name=NPM_TOKEN":  {policy.Secret{Handle: "npm", As: env, Name: "NPM_TOKEN"}, nil},
		"npm=file:/a,b=c,as=env":     {policy.Secret{Handle: "npm", As: env}, &runtime.CallerSecret{File: "/a,b=c"}},
		"npm=file:a,name=x,as=file":  {policy.Secret{Handle: "npm", As: file, Name: "x"}, &runtime.CallerSecret{File: "a"}},
		"npm=env:TOKEN":              {policy.Secret{Handle: "npm", As: file}, &runtime.CallerSecret{Env: "TOKEN"}},
		"npm=cmd:pass show a:b, c=d": {policy.Secret{Handle: "npm", As: file}, &runtime.CallerSecret{Command: "pass show a:b, c=d"}},
		"api,as=http-header,host=a.example,prefix=Bearer ": {policy.Secret{Handle: "api", As: policy.SecretHTTPHeader, Host: "a.example", Prefix: "Bearer "}, nil},
	} {
		s, store, err := parseSecret(text)
		if err != nil || s != want.secret || (store == nil) != (want.store == nil) || (store != nil && *store != *want.store) {
			t.Errorf("%s: %+v %+v %v", text, s, store, err)
		}
	}
	for _, text := range []string{"", "=file:/a", "npm=", "npm=hunter2", "npm=file:", "npm=env:", "npm=vault:x", "NPM", "npm,as=argv", "npm,as=env,as=file", "a/b", "npm,host=a.example"} {
		_, _, err := parseSecret(text)
		if err == nil {
			t.Errorf("%s was taken", text)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the source is in the message: %v", text, err)
		}
	}
}
