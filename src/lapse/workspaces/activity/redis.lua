-- One script per operation; the server runs each as one atomic step, and each may be repeated.
--
-- ws_leases:ID    a sorted set of connection ids, scored by the end of their lease in Unix milliseconds
-- idle_timer:ID   exists while the idle timer runs, by the server's own expiry
-- ws_conn:ID      the plain counter of proxies that know no leases; read, never written
-- activity:epoch  since when, in Unix milliseconds, everything that was written here is still here
-- activity:server which run of which server that is
--
-- Names are made from ids here instead of being passed as keys: a read of a thousand workspaces is a quarter of the bytes,
-- and a cluster, which would have to know them, is not supported. The clock is the server's.
--
-- A lease is written before anything else is: at maxmemory the first write of a script is refused, and later ones are not,
-- so a script is applied as a whole or not at all.

-- name: shared
local EPOCH, SERVER = 'activity:epoch', 'activity:server'

local function time_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = time_ms()

local function text(number)
  return string.format('%.0f', number)
end

-- Answers since when this store remembers; nil if it has only begun to, with this call. It begins anew where there is no
-- epoch, or one that is no number or, because the clock went back, yet to come; and where the server is another one, or
-- the same after a start: an old epoch came back from its disk or by replication then, but what was written last may not.
local function epoch()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
  local value, before = redis.pcall('GET', EPOCH), redis.pcall('GET', SERVER)
  local since = type(value) == 'string' and string.match(value, '^%d+$') and tonumber(value)
  if since and since <= now and before == run then
    return since
  end
  redis.call('SET', SERVER, run)
  if since and since <= now and not before then
    return since
  end
  redis.call('SET', EPOCH, text(now))
  return nil
end

-- Lets a sorted set end with the last of its leases, so that one whose proxies are gone leaves nothing behind. A script
-- that begins before an end and looks again after it would see the set vanish halfway: hence the second more.
local function settle(leases)
  local last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', leases, text(tonumber(last) + 1000))
  end
end

local function live(leases)
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', text(now))
  return redis.call('ZCARD', leases)
end

-- name: connect
-- ARGV: workspace, connection, lease in milliseconds. Answers 1 if nobody else is there.
local leases = 'ws_leases:' .. ARGV[1]
redis.call('ZADD', leases, 'GT', text(now + ARGV[3]), ARGV[2])
epoch()
local count = live(leases)
settle(leases)
redis.call('DEL', 'idle_timer:' .. ARGV[1])
return count == 1 and 1 or 0

-- name: renew
-- ARGV: lease in milliseconds, then connection and workspace in turn. Answers the numbers of those that were lost, from 1.
local lost, ends = {}, text(now + ARGV[1])
for place = 2, #ARGV, 2 do
  local leases = 'ws_leases:' .. ARGV[place + 1]
  local held = redis.pcall('ZSCORE', leases, ARGV[place])
  if type(held) == 'string' and tonumber(held) > now then
    redis.call('ZADD', leases, 'XX', 'GT', ends, ARGV[place])
    settle(leases)
  else
    lost[#lost + 1] = place / 2
  end
end
epoch()
return lost

-- name: disconnect
-- ARGV: workspace, connection, idle timer in milliseconds or 0. Answers 1 if nobody is left.
local leases, timer = 'ws_leases:' .. ARGV[1], 'idle_timer:' .. ARGV[1]
redis.call('ZREM', leases, ARGV[2])
epoch()
if live(leases) > 0 then
  settle(leases)
  return 0
end
if ARGV[3] == '0' then
  redis.call('DEL', timer)
else
  redis.call('SET', timer, '1', 'PX', ARGV[3])
end
return 1

-- name: read
-- ARGV: how long a store is not believed after it began, in milliseconds; then workspaces. Answers {0} if it has only
-- begun, {1} if not long enough ago, else 2 and for each workspace a kind and a number: 0 nobody; 1 connections; 2 the
-- milliseconds that its timer has left; 3 not readable.
local since = epoch()
if not since then
  return {0}
end
if now - since < tonumber(ARGV[1]) then
  return {1}
end

local after = '(' .. text(now)

-- A counter as INCR and DECR write it; one below zero counts for nothing, as it does for those proxies.
local function counted(key)
  local value = redis.pcall('GET', key)
  if not value then
    return 0
  end
  local number = type(value) == 'string' and string.match(value, '^-?%d+$') and tonumber(value)
  return number and math.min(math.max(number, 0), 2147483647)
end

-- Most that are asked about are quiet, so the first question is whether there is anything to read at all.
local function signal(id)
  local leases, counter, timer = 'ws_leases:' .. id, 'ws_conn:' .. id, 'idle_timer:' .. id
  if redis.call('EXISTS', leases, counter, timer) == 0 then
    return 0, 0
  end
  local leased, others = redis.pcall('ZCOUNT', leases, after, '+inf'), counted(counter)
  local known = type(leased) == 'number' and leased or 0
  if known + (others or 0) > 0 then
    return 1, known + (others or 0)
  end
  if type(leased) ~= 'number' or not others then
    return 3, 0
  end
  local left = redis.call('PTTL', timer)
  if left == -2 then
    return 0, 0
  end
  if left < 0 then
    return 3, 0
  end
  return 2, math.max(left, 1)
end

local answer = {2}
for place = 2, #ARGV do
  answer[#answer + 1], answer[#answer + 2] = signal(ARGV[place])
end
return answer

-- name: check
-- Tries every command that a script uses where it does nothing, then begins the epoch if need be: what a user may not do
-- must show when a proxy starts, not when somebody connects. Answers the first that is impossible with the reason, or
-- nothing.
local leases, timer, counter = 'ws_leases:lapse-check', 'idle_timer:lapse-check', 'ws_conn:lapse-check'
for _, words in ipairs({
  {'INFO', 'server'}, {'GET', EPOCH}, {'GET', SERVER}, {'GET', counter}, {'EXISTS', timer}, {'PTTL', timer},
  {'DEL', timer}, {'SET', timer, '', 'XX', 'PX', 1}, {'ZADD', leases, 'XX', 0, ''}, {'ZREM', leases, ''},
  {'ZRANGE', leases, 0, 0}, {'ZSCORE', leases, ''}, {'ZCARD', leases}, {'ZCOUNT', leases, 0, 0},
  {'ZREMRANGEBYSCORE', leases, 0, 0}, {'PEXPIREAT', leases, 1},
}) do
  local answer = redis.pcall(unpack(words))
  local problem = type(answer) == 'table' and answer.err or ''
  if string.find(problem, '^ERR') or string.find(problem, '^NOPERM') then
    return {words[1], problem}
  end
end
epoch()
return {}
