BEGIN TRANSACTION;
CREATE TABLE tool_records (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    call_id TEXT NOT NULL,
    parent_id TEXT,
    agent_id TEXT,
    tool_name TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at REAL NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO "tool_records" VALUES(1,'c1',NULL,'a','calculate','ok',1.79552048036292600631e+09,'{"call_id": "c1", "tool_name": "calculate", "agent_id": "a", "parent_id": null, "tool_version": "1.0.0", "arguments": {"expression": "6*7"}, "verdict": "allowed", "status": "ok", "started_at": "2026-11-24T11:41:20.362926+00:00", "duration_ms": 6.305564000285813, "result": 42, "error_kind": null, "reason": null, "error_detail": null, "usage": {"wall_ms": 5}, "backend": "loop", "attempt": 1, "final": true, "replayed": false, "still_running": false}');
INSERT INTO "tool_records" VALUES(2,'c2',NULL,'a','get_today_date','ok',1.79552048037105798717e+09,'{"call_id": "c2", "tool_name": "get_today_date", "agent_id": "a", "parent_id": null, "tool_version": "1.0.0", "arguments": {}, "verdict": "allowed", "status": "ok", "started_at": "2026-11-24T11:41:20.371058+00:00", "duration_ms": 46.40586500045174, "result": {"today": "2026-11-24", "weekday": "Tuesday", "year": 2026, "tomorrow": "2026-11-25", "day_after_tomorrow": "2026-11-26", "next_7_days_by_weekday": {"wednesday": "2026-11-25", "thursday": "2026-11-26", "friday": "2026-11-27", "saturday": "2026-11-28", "sunday": "2026-11-29", "monday": "2026-11-30", "tuesday": "2026-12-01"}, "one_week_from_now": "2026-12-01", "two_weeks_from_now": "2026-12-08"}, "error_kind": null, "reason": null, "error_detail": null, "usage": {"wall_ms": 1}, "backend": "loop", "attempt": 1, "final": true, "replayed": false, "still_running": false}');
CREATE INDEX tool_records_call ON tool_records (call_id);
CREATE INDEX tool_records_agent ON tool_records (agent_id, tool_name);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tool_records',2);
COMMIT;
