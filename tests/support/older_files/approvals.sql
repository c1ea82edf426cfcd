BEGIN TRANSACTION;
CREATE TABLE approval_grants (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL,
    expires_at REAL NOT NULL,
    "grant" TEXT NOT NULL
) STRICT;
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    status TEXT NOT NULL,
    asked_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    request TEXT NOT NULL,
    approver TEXT,
    reason TEXT,
    arguments TEXT
) STRICT;
INSERT INTO "approvals" VALUES('fb4230c9cc7780a4','430d8cf21c8e37744a2823808ac07380383979308393e6958370e5d08d9d4d39','a','used',1.79552048037737703323e+09,1.79811248037737703327e+09,'{"id":"fb4230c9cc7780a4","call":{"id":"c2","name":"get_today_date","arguments":{},"agent_id":"a","parent_id":null},"run_id":"r1","version":"1.0.0","definition_hash":"f04bf97e24cbc1e704b9061897785a619b8773e1f92fb75215eb594664262e35","tags":[],"rule":"a.ask[0]","asked_at":1795520480.377377,"expires_at":1798112480.377377}','Ann','',NULL);
CREATE INDEX approvals_by_digest ON approvals (digest);
CREATE INDEX approvals_by_agent ON approvals (agent_id, status);
CREATE INDEX approval_grants_by_agent ON approval_grants (agent_id);
COMMIT;
